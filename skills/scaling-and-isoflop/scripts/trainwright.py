"""Makes the folder beside this file the package trainwright, also where an installer left its __init__.py out."""

import os

__path__ = [os.path.join(os.path.dirname(os.path.realpath(__file__)), "trainwright")]
