"""From checkpoint bytes to a model whose blocks lie on the host."""

from poros.loading.lean_bitsandbytes import import_bitsandbytes

# Before peft and transformers, which import it as it is.
import_bitsandbytes()
