"""The terminal app of Poros: sees the torch-free files of `poros`, never torch."""
