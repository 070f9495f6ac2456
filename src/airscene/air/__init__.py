"""AIR and its relatives: 2D scenes of objects in windows (the paper's section 3)."""
