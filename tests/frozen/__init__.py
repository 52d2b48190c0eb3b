"""What the package computes, bit for bit, so that a change of its insides can be told from one.

``cases`` says what is run, ``parts`` runs a case and hashes what came out, ``record`` writes the
hashes to ``hashes.json`` or compares with them.
"""
