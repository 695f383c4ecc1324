"""Use cases, one per file, named by their verb, in wings by noun. They decide; routers translate, `app.db` queries."""
