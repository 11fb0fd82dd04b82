"""The Spark session: Java, jars, the class archive, classic Spark and Connect."""
