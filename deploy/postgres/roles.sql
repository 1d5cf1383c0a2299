-- The two roles of the service, and its database. Run once, as a superuser, with psql 15 or newer:
--
--   OWNER_PASSWORD=… APP_PASSWORD=… psql --set ON_ERROR_STOP=1 --file deploy/postgres/roles.sql
--
-- yoco_owner owns the tables and runs `migrate`; yoco_app is what web, worker and beat connect as. It owns nothing, so it
-- cannot switch a trigger off. What it may do with each table `manage.py database_roles --apply` says after each migration.
\getenv owner_password OWNER_PASSWORD
\getenv app_password APP_PASSWORD
CREATE ROLE yoco_owner LOGIN PASSWORD :'owner_password' NOSUPERUSER NOCREATEDB NOCREATEROLE NOREPLICATION;
CREATE ROLE yoco_app LOGIN PASSWORD :'app_password' NOSUPERUSER NOCREATEDB NOCREATEROLE NOREPLICATION NOINHERIT;
CREATE DATABASE yoco OWNER yoco_owner;
REVOKE ALL ON DATABASE yoco FROM PUBLIC;
GRANT CONNECT ON DATABASE yoco TO yoco_app;
\connect yoco
ALTER SCHEMA public OWNER TO yoco_owner;
REVOKE ALL ON SCHEMA public FROM PUBLIC;
GRANT USAGE ON SCHEMA public TO yoco_app;
