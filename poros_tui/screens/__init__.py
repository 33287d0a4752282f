"""The screens, each a mode of its own; all subclass `screens.base.PorosScreen`."""
