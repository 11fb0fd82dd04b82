package org.apache.iceberg.rest;

import java.net.InetSocketAddress;
import java.util.Map;
import org.apache.hadoop.conf.Configuration;
import org.apache.iceberg.CatalogUtil;
import org.apache.iceberg.catalog.Catalog;
import org.apache.iceberg.catalog.Namespace;
import org.apache.iceberg.catalog.TableIdentifier;
import org.apache.iceberg.rest.requests.CreateTableRequest;
import org.eclipse.jetty.server.Server;
import org.eclipse.jetty.servlet.ServletContextHandler;
import org.eclipse.jetty.servlet.ServletHolder;

/**
 * Iceberg's reference REST catalog on loopback. Its own main binds every address.
 *
 * <p>Arguments: a folder for the catalog and the warehouse. Prints the port, and ends when its input does. Unlike the
 * reference server it sets no compression codec of its own, because other REST catalogs set none.
 */
public final class LoopbackServer {
  private static final String CODEC = "write.parquet.compression-codec";

  private LoopbackServer() {}

  public static void main(String[] args) throws Exception {
    Catalog catalog =
        CatalogUtil.buildIcebergCatalog(
            "backend",
            Map.of(
                "catalog-impl", "org.apache.iceberg.jdbc.JdbcCatalog",
                "uri", "jdbc:sqlite:" + args[0] + "/rest.db?busy_timeout=30000",
                "jdbc.schema-version", "V1",
                "warehouse", args[0] + "/warehouse"),
            new Configuration());
    Server server = new Server(new InetSocketAddress("127.0.0.1", 0));
    ServletContextHandler context = new ServletContextHandler();
    context.addServlet(new ServletHolder(new RESTCatalogServlet(new PlainAdapter(catalog))), "/*");
    server.setHandler(context);
    server.start();
    System.out.println("listening on " + server.getURI().getPort());
    while (System.in.read() >= 0) {}
    server.stop();
    System.exit(0);
  }

  /** Takes back the codec that the server has added to a table whose creator named none. */
  private static final class PlainAdapter extends RESTCatalogAdapter {
    private final Catalog catalog;

    PlainAdapter(Catalog catalog) {
      super(catalog);
      this.catalog = catalog;
    }

    @Override
    public <T extends RESTResponse> T handleRequest(
        Route route, Map<String, String> vars, Object body, Class<T> responseType) {
      T response = super.handleRequest(route, vars, body, responseType);
      if (route != Route.CREATE_TABLE) {
        return response;
      }
      CreateTableRequest request = castRequest(CreateTableRequest.class, body);
      if (request.stageCreate() || request.properties().containsKey(CODEC)) {
        return response;
      }
      Namespace namespace = RESTUtil.decodeNamespace(vars.get("namespace"));
      TableIdentifier name = TableIdentifier.of(namespace, request.name());
      catalog.loadTable(name).updateProperties().remove(CODEC).commit();
      return castResponse(responseType, CatalogHandlers.loadTable(catalog, name));
    }
  }
}
