"""The models: one folder each, named as the device backend names it; found by a checkpoint's ``_class_name``."""
