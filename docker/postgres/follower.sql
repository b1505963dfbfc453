-- The account of the second database, as docs/second-database.md describes it.
CREATE ROLE follower LOGIN PASSWORD 'demo';
CREATE DATABASE reports;
GRANT CONNECT, CREATE ON DATABASE reports TO follower;
