"""Makes manifests of Diptych from those of KAOS and kagent."""

from diptych.importer.files import Imported, import_files
from diptych.importer.translation import Note, Outcome

__all__ = ["Imported", "Note", "Outcome", "import_files"]
