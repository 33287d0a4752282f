"""Drop-in: `prepare` streams the layers of a loaded model in the user's own training loop."""
