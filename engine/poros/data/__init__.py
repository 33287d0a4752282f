"""From rows to batches of tokens and labels."""
