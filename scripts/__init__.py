"""Commands; in an installed package this folder is ``bayes_dc.commands``."""
