"""Rows that the database refuses to write, as a bug of ours or a broken constraint would have it."""

from __future__ import annotations

from sqlalchemy import text

from tests.control.world import World

_REFUSE = """
    CREATE OR REPLACE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        IF position(TG_ARGV[0] in coalesce(NEW::text, OLD::text)) > 0 THEN
            RAISE EXCEPTION 'poisoned';
        END IF;
        RETURN coalesce(NEW, OLD);
    END $$
"""


async def poison(world: World, table: str, word: str, *, at_commit: bool = False) -> None:
    """No row of this table that holds this word can be written, or deleted, any more. `at_commit`: that is found out
    when everything else of the transaction is written."""
    when = "BEFORE INSERT OR UPDATE OR DELETE" if not at_commit else "AFTER INSERT OR UPDATE OR DELETE"
    deferred = "DEFERRABLE INITIALLY DEFERRED" if at_commit else ""
    kind = "CONSTRAINT TRIGGER" if at_commit else "TRIGGER"
    async with world.database.transaction() as connection:
        await connection.execute(text(_REFUSE))
        await connection.execute(
            text(f"CREATE {kind} poison {when} ON {table} {deferred} FOR EACH ROW EXECUTE FUNCTION refuse('{word}')")
        )


async def heal(world: World, table: str) -> None:
    """Its rows can be written again."""
    async with world.database.transaction() as connection:
        await connection.execute(text(f"DROP TRIGGER poison ON {table}"))
