"""Training models, the paper's and the universal one. Needs torch."""

from facelink.errors import MissingExtraError

try:
    import torch as _torch  # noqa: F401
except ImportError:
    raise MissingExtraError(
        "Training needs torch: pip install 'facelink[train]' "
        "(torch's site tells how to get its much smaller CPU build)."
    ) from None

from facelink.training.loop import Epoch, train

__all__ = ["Epoch", "train"]
