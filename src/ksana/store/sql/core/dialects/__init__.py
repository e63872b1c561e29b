"""What differs between SQLite, MariaDB/MySQL and PostgreSQL: words of SQL, how to connect, how many
rows are written at once, and what an error means. One module each.

The drivers are imported there and only when their database is used, so the default install needs
none of them. Neither is the module of a database on a network before it is.
"""

from ksana.store.sql.core.dialects.base import Dialect, Trouble
from ksana.store.sql.core.dialects.sqlite import SqliteDialect

__all__ = ["Dialect", "SqliteDialect", "Trouble"]
