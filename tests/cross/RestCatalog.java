// A REST catalog on loopback: Iceberg's own request handlers over its JDBC catalog, behind Java's HTTP server.
// Arguments: the JDBC URI and the warehouse. Prints the port when it listens; ends when its input ends.
// POST /test/lose-answer lets the next commit happen and answers it with 504.

import com.sun.net.httpserver.HttpExchange;
import com.sun.net.httpserver.HttpServer;
import java.io.IOException;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.net.URLDecoder;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.concurrent.Executors;
import java.util.concurrent.atomic.AtomicBoolean;
import org.apache.hadoop.conf.Configuration;
import org.apache.iceberg.catalog.Namespace;
import org.apache.iceberg.catalog.TableIdentifier;
import org.apache.iceberg.exceptions.AlreadyExistsException;
import org.apache.iceberg.exceptions.CommitFailedException;
import org.apache.iceberg.exceptions.CommitStateUnknownException;
import org.apache.iceberg.exceptions.NoSuchNamespaceException;
import org.apache.iceberg.exceptions.NoSuchTableException;
import org.apache.iceberg.exceptions.NoSuchViewException;
import org.apache.iceberg.jdbc.JdbcCatalog;
import org.apache.iceberg.rest.CatalogHandlers;
import org.apache.iceberg.rest.Endpoint;
import org.apache.iceberg.rest.RESTCatalogProperties;
import org.apache.iceberg.rest.RESTSerializers;
import org.apache.iceberg.rest.requests.CreateNamespaceRequest;
import org.apache.iceberg.rest.requests.CreateTableRequest;
import org.apache.iceberg.rest.requests.RegisterTableRequest;
import org.apache.iceberg.rest.requests.UpdateTableRequest;
import org.apache.iceberg.rest.responses.ConfigResponse;
import org.apache.iceberg.rest.responses.ErrorResponse;
import org.apache.iceberg.shaded.com.fasterxml.jackson.annotation.JsonAutoDetect;
import org.apache.iceberg.shaded.com.fasterxml.jackson.annotation.PropertyAccessor;
import org.apache.iceberg.shaded.com.fasterxml.jackson.databind.DeserializationFeature;
import org.apache.iceberg.shaded.com.fasterxml.jackson.databind.ObjectMapper;
import org.apache.iceberg.shaded.com.fasterxml.jackson.databind.PropertyNamingStrategies;

public class RestCatalog {
  private static final List<Endpoint> ENDPOINTS =
      List.of(
          Endpoint.V1_LIST_NAMESPACES, Endpoint.V1_LOAD_NAMESPACE, Endpoint.V1_CREATE_NAMESPACE,
          Endpoint.V1_LIST_TABLES, Endpoint.V1_LOAD_TABLE, Endpoint.V1_CREATE_TABLE,
          Endpoint.V1_UPDATE_TABLE, Endpoint.V1_DELETE_TABLE, Endpoint.V1_REGISTER_TABLE);

  private final JdbcCatalog catalog = new JdbcCatalog();
  private final ObjectMapper mapper = new ObjectMapper();
  private final AtomicBoolean loseAnswer = new AtomicBoolean();

  private RestCatalog(String uri, String warehouse) {
    catalog.setConf(new Configuration());
    catalog.initialize("rest", Map.of("uri", uri, "warehouse", warehouse, "jdbc.schema-version", "V1"));
    mapper.setVisibility(PropertyAccessor.FIELD, JsonAutoDetect.Visibility.ANY);
    mapper.configure(DeserializationFeature.FAIL_ON_UNKNOWN_PROPERTIES, false);
    mapper.setPropertyNamingStrategy(new PropertyNamingStrategies.KebabCaseStrategy());
    RESTSerializers.registerAll(mapper);
  }

  public static void main(String[] args) throws IOException {
    RestCatalog served = new RestCatalog(args[0], args[1]);
    InetSocketAddress place = new InetSocketAddress(InetAddress.getByName("127.0.0.1"), 0);
    HttpServer server = HttpServer.create(place, 16);
    server.createContext("/", served::serve);
    server.setExecutor(Executors.newFixedThreadPool(4));
    server.start();
    System.out.println(server.getAddress().getPort());
    while (System.in.read() >= 0) {}
    System.exit(0);
  }

  private void serve(HttpExchange exchange) throws IOException {
    int code = 200;
    Object answer;
    try {
      byte[] body = exchange.getRequestBody().readAllBytes();
      answer = answered(exchange.getRequestMethod(), exchange.getRequestURI().getRawPath(), body);
      code = answer == null ? 204 : 200;
    } catch (RuntimeException failure) {
      code = codeOf(failure);
      answer =
          ErrorResponse.builder()
              .responseCode(code)
              .withType(failure.getClass().getSimpleName())
              .withMessage(String.valueOf(failure.getMessage()))
              .build();
    }
    byte[] sent = answer == null ? new byte[0] : mapper.writeValueAsBytes(answer);
    exchange.getResponseHeaders().add("Content-Type", "application/json");
    exchange.sendResponseHeaders(code, sent.length == 0 ? -1 : sent.length);
    exchange.getResponseBody().write(sent);
    exchange.close();
  }

  private Object answered(String method, String path, byte[] body) throws IOException {
    String[] parts =
        Arrays.stream(path.split("/"))
            .filter(part -> !part.isEmpty())
            .map(part -> URLDecoder.decode(part.replace("+", "%2B"), StandardCharsets.UTF_8))
            .toArray(String[]::new);
    if (path.equals("/test/lose-answer")) {
      loseAnswer.set(true);
      return null;
    }
    if (path.equals("/v1/config")) {
      return ConfigResponse.builder().withEndpoints(ENDPOINTS).build();
    }
    if (parts.length == 2 && parts[1].equals("namespaces")) {
      return method.equals("GET")
          ? CatalogHandlers.listNamespaces(catalog, Namespace.empty())
          : CatalogHandlers.createNamespace(catalog, mapper.readValue(body, CreateNamespaceRequest.class));
    }
    Namespace namespace = Namespace.of(parts[2].split("\u001f"));
    if (parts.length == 3) {
      return CatalogHandlers.loadNamespace(catalog, namespace);
    }
    if (parts.length == 4 && parts[3].equals("register")) {
      RegisterTableRequest request = mapper.readValue(body, RegisterTableRequest.class);
      return CatalogHandlers.registerTable(catalog, namespace, request);
    }
    if (parts.length == 4 && parts[3].equals("tables")) {
      return method.equals("GET") ? CatalogHandlers.listTables(catalog, namespace) : create(namespace, body);
    }
    if (parts.length == 5 && parts[3].equals("tables")) {
      return table(method, TableIdentifier.of(namespace, parts[4]), body);
    }
    throw new UnsupportedOperationException(method + " " + path);
  }

  private Object create(Namespace namespace, byte[] body) throws IOException {
    CreateTableRequest request = mapper.readValue(body, CreateTableRequest.class);
    return request.stageCreate()
        ? CatalogHandlers.stageTableCreate(catalog, namespace, request)
        : CatalogHandlers.createTable(catalog, namespace, request);
  }

  private Object table(String method, TableIdentifier table, byte[] body) throws IOException {
    switch (method) {
      case "GET":
        return CatalogHandlers.loadTable(catalog, table, RESTCatalogProperties.SnapshotMode.ALL);
      case "DELETE":
        CatalogHandlers.dropTable(catalog, table);
        return null;
      default:
        UpdateTableRequest request = mapper.readValue(body, UpdateTableRequest.class);
        Object answer = CatalogHandlers.updateTable(catalog, table, request);
        if (loseAnswer.getAndSet(false)) {
          throw new AnswerLost();
        }
        return answer;
    }
  }

  private static int codeOf(RuntimeException failure) {
    if (failure instanceof AnswerLost) {
      return 504;
    } else if (failure instanceof NoSuchTableException
        || failure instanceof NoSuchNamespaceException
        || failure instanceof NoSuchViewException) {
      return 404;
    } else if (failure instanceof AlreadyExistsException || failure instanceof CommitFailedException) {
      return 409;
    } else if (failure instanceof UnsupportedOperationException) {
      return 406;
    } else if (failure instanceof CommitStateUnknownException) {
      return 500;
    }
    return failure instanceof IllegalArgumentException ? 400 : 500;
  }

  private static class AnswerLost extends RuntimeException {
    AnswerLost() {
      super("the answer was lost");
    }
  }
}
