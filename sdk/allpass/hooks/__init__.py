"""What makes unchanged scripts movable. `startup/sitecustomize.py` wraps the methods that train; a module here serves
the call: `serve(original, self, args, kwargs)` calls the original once, whatever happens to us.
"""
