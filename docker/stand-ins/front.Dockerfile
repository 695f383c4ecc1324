# Plays `caddy:2` where no registry can be reached: Debian's Caddy.
FROM python:3.11-slim
RUN apt-get update && apt-get install --yes --no-install-recommends caddy
CMD ["caddy", "run", "--config", "/etc/caddy/Caddyfile", "--adapter", "caddyfile"]
