"""The version of the bundle; pyproject, the manifests and every report take it from here."""

VERSION = "0.1.0"
