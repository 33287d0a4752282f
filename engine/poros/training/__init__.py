"""One optimizer step, the loop around it, and what it saves."""
