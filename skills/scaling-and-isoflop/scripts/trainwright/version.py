# version.py without its comments
VERSION = "0.1.0"
