# The server, or a site, of a federation between organisations; docs/operations.md says how it is run.
#
#   docker build -t fedweave .
#   docker build -t fedweave --build-arg PIP_EXTRA_INDEX_URL=… .   # for another build of PyTorch
FROM python:3.11-slim AS build
ARG PIP_EXTRA_INDEX_URL=""
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1
WORKDIR /src
RUN python -m venv /opt/fedweave
# Dependencies first: they are the same until constraints.txt or pyproject.toml changes, the sources are not.
COPY pyproject.toml constraints.txt README.md LICENSE ./
RUN mkdir -p src/fedweave && touch src/fedweave/__init__.py \
    && /opt/fedweave/bin/pip install -c constraints.txt ".[flare]" \
    && /opt/fedweave/bin/pip uninstall -y fedweave
COPY src src
RUN /opt/fedweave/bin/pip install --no-deps .

FROM python:3.11-slim
RUN useradd --system --uid 10001 --no-create-home --shell /usr/sbin/nologin fedweave \
    && install -d -o fedweave -g fedweave /srv/fedweave
COPY --from=build /opt/fedweave /opt/fedweave
# HOME and USER: whoever runs it may have another number than fedweave, which no list of users knows.
ENV PATH=/opt/fedweave/bin:$PATH OMP_NUM_THREADS=2 PYTHONUNBUFFERED=1 HOME=/tmp USER=fedweave
USER fedweave
WORKDIR /srv/fedweave
ENTRYPOINT ["fedweave"]
CMD ["--help"]
