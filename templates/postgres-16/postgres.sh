# What the template needs of PostgreSQL: build makes the finished cluster, which becomes the data disk, serve and pool are the
# programs that run on in a guest, ready tells when both answer, and warm prepares what is captured.
#
#   build VARIANT BINDIR | serve | pool | ready | warm
set -eu
data=/var/lib/postgresql/data
run=/run/postgresql
facts=/etc/pandastack/postgres.json
wanted="vector pg_stat_statements pg_trgm ltree hstore uuid-ossp pgcrypto unaccent"

as_postgres() { runuser -u postgres -- "$@"; }
fact() { jq -r "$1" $facts; }

build() {
	variant=$1
	bin=$2
	# The packages' own cluster and its tools are not this one; the real programs are first in PATH.
	rm -rf /etc/postgresql /var/lib/postgresql
	for program in "$bin"/* /usr/lib/postgresql/*/bin/*; do
		name=${program##*/}
		[ -e "/usr/local/bin/$name" ] || ln -s "$program" "/usr/local/bin/$name"
	done
	install -d -o postgres -g postgres -m 0700 /var/lib/postgresql $data
	install -d -o postgres -g postgres $run /etc/pgbouncer /etc/pandastack
	as_postgres "$bin/initdb" -D $data -U postgres --encoding=UTF8 --locale-provider=libc --locale=C.UTF-8 \
		--data-checksums --auth-local=peer --auth-host=scram-sha-256 > /dev/null
	configure
	as_postgres "$bin/pg_ctl" -D $data -w -s -o "-c listen_addresses= -c unix_socket_directories=$run" -l /tmp/build.log start
	as_postgres psql -h $run -qAt -v ON_ERROR_STOP=1 postgres <<-'S'
		create role "user" superuser login;
		create role root superuser login;
		create role pgbouncer login;
		create schema pgbouncer authorization pgbouncer;
		create function pgbouncer.get_auth(name text, out username text, out password text) returns setof record
			language sql security definer set search_path = pg_catalog as
			$$ select rolname::text, case when rolvaliduntil < now() then null else rolpassword end
			   from pg_authid where rolname = name and rolcanlogin and not rolsuper $$;
		revoke all on function pgbouncer.get_auth(text) from public;
		grant execute on function pgbouncer.get_auth(text) to pgbouncer;
	S
	prepared
	describe
	as_postgres "$bin/pg_ctl" -D $data -w -s -m fast stop
	rm -f /tmp/build.log
}

configure() {
	# Nobody has a password: through a port nobody comes in before a role is given one. Whoever is in the
	# guest may be anybody in it, and so any role too.
	cat > $data/pg_hba.conf <<-'S'
		local   all         all                     peer map=inside
		host    all         all         all         scram-sha-256
		host    replication all         all         scram-sha-256
		local   replication all                     peer map=inside
	S
	cat > $data/pg_ident.conf <<-'S'
		inside  /^.*$  all
	S
	cat >> $data/postgresql.conf <<-S
		listen_addresses = '*'
		unix_socket_directories = '$run'
		shared_preload_libraries = 'pg_stat_statements'
		password_encryption = scram-sha-256
		wal_level = replica
		max_slot_wal_keep_size = 2GB
		jit = off
		log_timezone = 'UTC'
		timezone = 'UTC'
	S
	cat > /etc/pgbouncer/pgbouncer.ini <<-S
		[databases]
		* = host=$run
		[pgbouncer]
		listen_addr = *
		listen_port = 6432
		unix_socket_dir = $run
		auth_type = hba
		auth_hba_file = /etc/pgbouncer/hba.conf
		auth_file = /etc/pgbouncer/userlist.txt
		auth_user = pgbouncer
		auth_dbname = postgres
		auth_query = SELECT username, password FROM pgbouncer.get_auth(\$1)
		pool_mode = transaction
		max_prepared_statements = 200
		max_client_conn = 1000
		default_pool_size = 20
		ignore_startup_parameters = extra_float_digits,options,search_path
		admin_users = postgres
		pidfile =
	S
	# Known without a password, for those who are in the guest; through a port they do not come in with none.
	printf '"pgbouncer" ""\n"postgres" ""\n"root" ""\n"user" ""\n' > /etc/pgbouncer/userlist.txt
	printf 'local all all trust\nhost all all 0.0.0.0/0 scram-sha-256\nhost all all ::/0 scram-sha-256\n' > /etc/pgbouncer/hba.conf
	chown -R postgres: $data /etc/pgbouncer
}

# prepared makes a template database that has all the wanted extensions there are. A database made of it has them at once.
prepared() {
	as_postgres psql -h $run -qAt -v ON_ERROR_STOP=1 postgres -c 'create database prepared is_template true'
	for extension in $wanted; do
		there=$(as_postgres psql -h $run -qAt postgres -c "select count(*) from pg_available_extensions where name = '$extension'")
		[ "$there" = 0 ] || as_postgres psql -h $run -q -v ON_ERROR_STOP=1 prepared -c "create extension \"$extension\""
	done
}

# describe writes down what this variant has, from the running server.
describe() {
	as_postgres psql -h $run -qAt -v ON_ERROR_STOP=1 -v variant="$variant" -v bin="$bin" -v data="$data" -v wanted="$wanted" postgres > $facts <<-'S'
		select jsonb_pretty(jsonb_build_object(
			'variant', :'variant', 'version', current_setting('server_version'), 'bindir', :'bin', 'data', :'data',
			'data_disk', 'data', 'template_database', 'prepared',
			'port', 5432, 'pooler_port', 6432,
			'encoding', 'UTF8', 'locale_provider', 'libc', 'locale', 'C.UTF-8',
			'collation_version', (select datcollversion from pg_database where datname = 'postgres'),
			'extensions', (select jsonb_object_agg(name, default_version order by name) from pg_available_extensions
				where name = any(string_to_array(:'wanted', ' '))),
			'missing', (select coalesce(jsonb_agg(w), '[]') from unnest(string_to_array(:'wanted', ' ')) w
				where not exists (select from pg_available_extensions where name = w)),
			'others', (select jsonb_agg(name order by name) from pg_available_extensions
				where not name = any(string_to_array(:'wanted', ' ')))));
	S
}

serve() {
	install -d -o postgres -g postgres $run
	# A disk may have been left by a server in the middle of its work, in another life of the machine: the number that it wrote
	# down can be that of any process here.
	pgrep -x postgres > /dev/null || rm -f $data/postmaster.pid
	# A quarter of the memory, so that the same disk serves machines of any size.
	kib=$(sed -n 's/^MemTotal: *\([0-9]*\) kB/\1/p' /proc/meminfo)
	exec runuser -u postgres -- "$(fact .bindir)/postgres" -D $data -c shared_buffers=$((kib / 4))kB -c effective_cache_size=$((kib / 2))kB
}

pool() {
	install -d -o postgres -g postgres $run
	exec runuser -u postgres -- /usr/sbin/pgbouncer -q /etc/pgbouncer/pgbouncer.ini
}

ready() {
	as_postgres psql -qAt -h $run -c 'select 1' postgres
	as_postgres psql -qAt -h $run -p 6432 -c 'select 1' postgres
}

# warm runs what a new managed database and its first clients run, so that restored machines need neither read nor translate it
# again. It leaves the cluster as it was, but for the files that the first connection to a database makes.
warm() {
	psql -h $run -U postgres -qAt -v ON_ERROR_STOP=1 postgres <<-'S'
		begin;
		create role warm login createdb createrole password 'warm';
		grant pg_monitor, pg_signal_backend to warm;
		alter database prepared rename to warm;
		alter database warm is_template false;
		alter database warm owner to warm;
		alter role all set log_min_duration_statement = '1s';
		rollback;
		checkpoint;
		create role warm login password 'warm';
	S
	for port in 5432 6432; do
		PGPASSWORD=warm psql -h 127.0.0.1 -p $port -U warm -qAt -c 'select 1' prepared
	done
	psql -h $run -U postgres -qAt -p 6432 -c 'kill prepared' -c 'resume prepared' pgbouncer
	psql -h $run -U postgres -qAt -v ON_ERROR_STOP=1 -c 'drop role warm' postgres
}

"$@"
