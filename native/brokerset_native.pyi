"""The byte work of a broker, in Rust. `brokerset_formats.native` imports it, nothing else does."""

from typing import Final

INTERFACE: Final[int]
"""Number of the interface between the Python code and this module; both sides must have the same."""

__version__: Final[str]
