"""Models that run through their class of Transformers, with our KV pool, attention, GEMMs and ranks.

The only part of the package that imports transformers, and imported only for such models: the library takes seconds.
No code of a model is run: `config.json` names a class of the installed library, and nothing else is looked at.
"""

from .checks import check_runnable
from .loading import load_fallback
from .skeleton import count_parameters

__all__ = ["check_runnable", "count_parameters", "load_fallback"]
