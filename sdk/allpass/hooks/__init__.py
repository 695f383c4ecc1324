"""What makes unchanged scripts movable. `startup/sitecustomize.py` wraps the functions that train, and those that
begin a run of a tracker; a module here serves the call: `serve(original, args, kwargs)` calls the original once,
whatever happens to us. Of a method, the first of `args` is its object.
"""
