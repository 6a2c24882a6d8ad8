"""Programs on a whole mesh; the files are named as their counterparts in ``refsim.pipelines``."""
