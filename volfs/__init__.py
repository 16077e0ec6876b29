"""volfs: shared storage for machine learning, mounted at a path.

The daemon lives here; the light client library is a distribution of its own
(`volfs-client`) and imports nothing from this package.
"""

__all__ = ["__version__"]

__version__ = "0.1.0"
