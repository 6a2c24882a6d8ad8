"""The host's part of every pipeline: prompts to tokens, noise, what one part hands to the next, and the scheduler's
numbers; no model is named here.

Both implementations build on it, each with its own models: a pipeline of :mod:`refsim.pipelines` and its counterpart of
``tt_impl.pipelines`` are subclasses of the same :class:`refsim.pipelines.hosts.base.PipelineHost`.
"""
