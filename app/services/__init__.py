"""Use cases, one per file, named by their verb. They decide; routers translate and `app.db` queries."""
