"""What all tables share: one metadata, one convention for the names of constraints, three kinds of columns."""

from __future__ import annotations

from sqlalchemy import BigInteger, MetaData, Text

metadata = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "ck": "ck_%(table_name)s_%(constraint_name)s",
        "fk": "fk_%(table_name)s_%(column_0_N_name)s_%(referred_table_name)s",
        "pk": "pk_%(table_name)s",
    }
)

ID = Text
MS = BigInteger
MICROS = BigInteger
