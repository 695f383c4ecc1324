import preact from "@preact/preset-vite";
import { defineConfig } from "vite";

// Every address is relative, so that a proxy may serve the service below a path; names carry no hash, so that a rebuild
// changes the files that changed and no others (the service sends them with an ETag).
export default defineConfig({
  base: "./",
  plugins: [preact({ devToolsEnabled: false })],
  build: {
    outDir: "../app/api/front/dashboard",
    emptyOutDir: true,
    target: "es2022",
    modulePreload: false,
    reportCompressedSize: true,
    rolldownOptions: {
      output: {
        entryFileNames: "page-files/dashboard/[name].js",
        chunkFileNames: "page-files/dashboard/[name].js",
        assetFileNames: "page-files/dashboard/[name][extname]",
      },
    },
  },
  server: { proxy: { "/v1": "http://127.0.0.1:8000" } },
});
