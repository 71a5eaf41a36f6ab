"""Drives psycopg 3 and SQLAlchemy through the edge: clients.py CONNINFO CAFILE. Prints "ok NAME" for each operation."""
import asyncio
import sys
import threading

import psycopg
import sqlalchemy as sa
from psycopg.conninfo import conninfo_to_dict

conninfo = sys.argv[1]


def ok(name):
    print("ok", name, flush=True)


assert psycopg.pq.version() >= 180000, psycopg.pq.version()
for name, more in {
    "psycopg connects": "",
    "psycopg with channel_binding=require": " channel_binding=require",
    "psycopg with direct TLS": " sslnegotiation=direct",
    "psycopg with protocol 3.2": " min_protocol_version=3.2",
    "psycopg to the pooler": " host=db1-pooler.db.test",
}.items():
    with psycopg.connect(conninfo + more) as conn:
        assert conn.execute("select 1").fetchone() == (1,)
    ok(name)

with psycopg.connect(conninfo + " min_protocol_version=3.2") as conn:
    timer = threading.Timer(0.2, conn.cancel_safe)  # over TLS, with the long key
    timer.start()
    try:
        conn.execute("select pg_sleep(1000)")
        raise AssertionError("not cancelled")
    except psycopg.errors.QueryCanceled:
        ok("psycopg cancels over TLS with a long key")
    timer.join()

with psycopg.connect(conninfo) as conn:
    conn.prepare_threshold = 1
    for i in range(5):
        assert conn.execute("select %s::int + 1", [i]).fetchone() == (i + 1,)
    assert conn.execute("select count(*) from pg_prepared_statements").fetchone()[0] > 0
    ok("psycopg prepares statements")
    with conn.cursor() as cur:
        cur.execute("create temp table t (a int, b text)")
        with cur.copy("copy t from stdin") as copy:
            for i in range(1000):
                copy.write_row((i, "x" * 100))
        with cur.copy("copy t to stdout") as copy:
            assert sum(1 for _ in copy.rows()) == 1000
    ok("psycopg copies in and out")
    with conn.pipeline():
        cursors = [conn.execute("select %s::int", [i]) for i in range(50)]
    assert [c.fetchone()[0] for c in cursors] == list(range(50))
    ok("psycopg pipelines")

try:
    psycopg.connect(conninfo + " password=wrong")
    raise AssertionError("connected with a wrong password")
except psycopg.OperationalError as e:
    assert 'password authentication failed for user "pandastack"' in str(e), e
ok("psycopg sees a wrong password")


async def concurrently():
    async def one(i):
        async with await psycopg.AsyncConnection.connect(conninfo) as conn:
            return (await (await conn.execute("select %s::int", [i])).fetchone())[0]

    assert await asyncio.gather(*(one(i) for i in range(10))) == list(range(10))


asyncio.run(concurrently())
ok("psycopg asynchronously")

params = conninfo_to_dict(conninfo)
engine = sa.create_engine("postgresql+psycopg://", connect_args=params, pool_size=3)
metadata = sa.MetaData()
users = sa.Table("sa_users", metadata, sa.Column("id", sa.Integer, primary_key=True), sa.Column("name", sa.Text))
metadata.create_all(engine)
ok("SQLAlchemy creates tables")
with engine.begin() as conn:
    conn.execute(users.insert(), [{"id": i, "name": f"user {i}"} for i in range(100)])
    assert conn.execute(sa.select(sa.func.count()).select_from(users)).scalar() == 100
ok("SQLAlchemy inserts and counts")
assert [c["name"] for c in sa.inspect(engine).get_columns("sa_users")] == ["id", "name"]
engine.dispose()
ok("SQLAlchemy reflects")
