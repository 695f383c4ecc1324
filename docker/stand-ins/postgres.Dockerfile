# Plays `postgres:17` where no registry can be reached: Debian's PostgreSQL behind the same variables.
FROM python:3.11-slim
RUN apt-get update && apt-get install --yes --no-install-recommends postgresql \
 && ln -s /usr/lib/postgresql/*/bin/* /usr/local/bin/ ; pg_isready --version
COPY postgres.sh /entrypoint.sh
ENV PGDATA=/var/lib/postgresql/data
VOLUME /var/lib/postgresql/data
ENTRYPOINT ["sh", "/entrypoint.sh"]
