"""One optimizer step, the loop around it, and what it saves."""

from poros.loading.lean_bitsandbytes import import_bitsandbytes

# Before peft and transformers, which import it as it is.
import_bitsandbytes()
