"""`poros chat` and `poros generate`: base and adapter streamed, and what they say."""

from poros.loading.lean_bitsandbytes import import_bitsandbytes

# Before peft and transformers, which import it as it is.
import_bitsandbytes()
