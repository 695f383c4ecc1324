# Plays the S3 store where no registry can be reached. It checks no signature and keeps all in memory: for verifying
# the stack, never for use.
FROM python:3.11-slim
RUN python3 -m venv /opt/moto && /opt/moto/bin/pip install --no-cache-dir 'moto[server]==5.2.5'
ENTRYPOINT ["/opt/moto/bin/moto_server", "-H", "0.0.0.0", "-p", "8333"]
CMD []
