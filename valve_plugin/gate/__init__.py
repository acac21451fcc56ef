"""The panel run (a subprocess) and the judge that reads its stream."""
