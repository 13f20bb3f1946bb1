"""GEMMs and GEMVs of dense layers: 16-bit, W8A8 and weight-only quantised, with their prologues and epilogues."""
