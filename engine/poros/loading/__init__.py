"""From checkpoint bytes to a model whose blocks lie on the host."""
