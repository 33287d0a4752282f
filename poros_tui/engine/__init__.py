"""The app's side of the engine: its process, its event file, its socket, its other commands."""
