// Requests that are tried out go to where this page came from, also below a path of a proxy.
fetch("openapi.json").then((answer) => answer.json()).then((spec) => {
  spec.servers = [{ url: new URL(".", location.href).href.replace(/\/$/, "") }];
  SwaggerUIBundle({ spec, dom_id: "#swagger-ui", deepLinking: true, validatorUrl: null, persistAuthorization: false });
});
