"""The engine of models whose computation was written down once: of each block only what follows."""
