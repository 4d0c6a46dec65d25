"""Import torchvision's network definitions where its compiled operators do not load.

A torchvision built for CUDA beside a CPU build of torch has no compiled operators, and stops at import in the two
modules that attach kernels to them. The architectures in `torchvision.models` need none of these operators (only
detection does), so where the plain import fails we import again with those two modules replaced by empty ones.
A torchvision that works is left as it is. For benchmarks only.

    from torchvision_shim import models
    network = models.resnet18()
"""

import importlib
import sys
from types import ModuleType
from typing import Any

_REGISTRATIONS = ("torchvision._meta_registrations", "torchvision._autograd_registrations")


def _import_models() -> Any:
    try:
        return importlib.import_module("torchvision.models")
    except RuntimeError as error:
        if "torchvision::" not in str(error):
            raise
    for name in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
        del sys.modules[name]
    for name in _REGISTRATIONS:
        sys.modules[name] = ModuleType(name, "Empty: the compiled operators it would register are not there.")
    return importlib.import_module("torchvision.models")


models = _import_models()
