"""Proof: both arms of the parity gate, its mutants and its artifacts."""
