"""PostgreSQL: the only SQL of the service, one module per question that is asked of the database, in wings by noun.

The files beside the wings are the ground that all of them stand on: connections, locks, fences, guarded changes of
state, wake-ups, the schema. A table belongs to the wing after which its file in `tables` is called.
"""
