"""Moving blocks of tensors between host and device; knows nothing of NF4 or transformers."""
